# SPDX-License-Identifier: MIT
"""What `import hybrid` gives."""

from __future__ import annotations

import hybrid


def test_the_module_s_help_names_every_public_name():
    told = [line.split()[0] for line in (hybrid.__doc__ or "").splitlines() if line.strip()]
    for name in hybrid.__all__:
        assert name.startswith("__") or name in told
        assert name in dir(hybrid)
