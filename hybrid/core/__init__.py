# SPDX-License-Identifier: MIT
"""Words that every room uses: this file defines nothing."""
