"""The advisor. A plan is data (plan/). Layers are measured in each way to run them (measure/), the
best choice of ways is searched (search, pick) and assembled to a plan, which is reported (report/)
and applied."""
