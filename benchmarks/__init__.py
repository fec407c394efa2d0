"""What the model server costs: `python -m benchmarks`, or `make bench`. Linux only; docs/performance.md explains it."""
