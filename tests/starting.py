"""The old name of support.commands, until the tests of the scripts import that."""

from support.commands import module as module
from support.commands import start as start
from support.commands import successful as successful
