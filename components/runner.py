"""The first ring of retries: what a component body calls."""
