"""Ways into a running host: run a command there, or reach a port of its loopback interface. Start in `host`."""
