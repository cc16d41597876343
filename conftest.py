"""No options, fixtures or plugins are declared here: those of users are in ``benchsuite/plugin.py``, those of the
suite's own tests in ``benchsuite/tests/conftest.py``. The file marks the root, so that pytest finds it from any folder.
"""
