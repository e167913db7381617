"""The advisor: layers are measured in each way to run them (ways, model, layers, times), the best
choice of ways is searched (search), and is a plan, which is reported and applied (plan, report)."""
