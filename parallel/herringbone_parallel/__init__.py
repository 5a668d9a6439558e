"""The parallel libraries: `core` without a framework, `reduce` for sums, and one adaptor per framework."""
