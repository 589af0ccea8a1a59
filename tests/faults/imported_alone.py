"""Print where a module that is run by a forked process imports the packages from."""

from tests.faults.imported import PROGRAM

exec(PROGRAM)
