# SPDX-License-Identifier: MIT
"""Limits on what is listed or drawn, so that it stays readable."""

MOST_LISTED = 1000  # walks
MOST_STEPS = 1000  # of a listed walk
MOST_TERMS = 100  # of a printed sum
MOST_DRAWN = 60  # vertices of a picture
MOST_PANELS = 12  # of a picture: walks
