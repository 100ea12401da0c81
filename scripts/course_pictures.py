# SPDX-License-Identifier: MIT
"""Draws the pictures of docs/course anew: python scripts/course_pictures.py"""

from experiments.start import run

run("course_pictures")
