# SPDX-License-Identifier: MIT
"""What nobody should find in a text that is handed out."""

from __future__ import annotations

import re

MARKS = re.compile("TOD[O]|FIXM[E]")  # in brackets, so that a search for the marks does not find this line
