"""The time that faults cost a job: what a user says about them, the expectation, its bounds. Pure."""
