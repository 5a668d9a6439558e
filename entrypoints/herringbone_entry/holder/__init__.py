"""The holder: one small process per host and job, whose memory keeps checkpoints over attempts of the job."""
