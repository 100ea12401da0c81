# SPDX-License-Identifier: MIT
"""What all other packages use."""
