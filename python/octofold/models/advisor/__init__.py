"""The advisor: layers (layers, ways) are measured (measure/), a plan is searched (search, pick) and
assembled, told (report/), and applied."""
