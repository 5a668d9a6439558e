"""The attempts of a job: its ledger in the cluster, what becomes of its hosts, and the controller that goes on."""
