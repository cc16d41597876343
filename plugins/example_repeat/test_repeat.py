"""The draft ``repeat`` keeps what every draft must keep."""

from benchsuite import conformance

TestRepeat = conformance.draft("repeat")
