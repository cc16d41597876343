"""The folder of a run under load, with every load from the moment when all of it was measured."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from benchsuite.benches.load.measured_load import MeasuredLoad
from benchsuite.store.journal import UNREADABLE, RunFolder, unreadable


class LoadJournal(RunFolder):
    """Loads of settings, each by the setting's name.

    Example: ``LoadJournal.resume(root, "load", manifest(options)).loads("smollm2-135m")``
    """

    format = "specdec-load"
    holds = "loads"

    def keep(self, setting: str, found: MeasuredLoad) -> None:
        """Write a load, whole. Raises OSError."""
        readable = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in setting)
        name = f"{readable[:80]}-{hashlib.sha256(setting.encode()).hexdigest()[:8]}-{found.load.id}"
        self.keep_value(name, {"setting": setting, **found.as_json()})

    def loads(self, setting: str) -> Iterator[MeasuredLoad]:
        """Read the loads of a setting. SpecdecError if one is corrupt, with what to do about it."""
        for file, value in self.values():
            try:
                if value["setting"] == setting:
                    yield MeasuredLoad.from_json(value)
            except UNREADABLE as error:
                raise unreadable(file, error) from error
