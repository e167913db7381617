"""octofold before octofold_tool: the command imports it in a way that leaves torch out."""

import octofold  # noqa: F401
