# SPDX-License-Identifier: MIT
"""How much of a graph is listed or drawn, so that it can still be read."""

MOST_LISTED = 1000  # walks
MOST_STEPS = 1000  # of a walk that is listed
MOST_TERMS = 100  # of a sum that is shown
MOST_DRAWN = 60  # vertices of a picture
MOST_PANELS = 12  # of a picture: walks
