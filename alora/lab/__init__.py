"""Research: benchmarks, the comparison of methods, the planner. Nothing but their verbs imports it."""
