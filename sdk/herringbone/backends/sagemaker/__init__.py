"""Backend for instance types `ml.*`: SageMaker runs the hosts. `backend` implements the verbs."""
