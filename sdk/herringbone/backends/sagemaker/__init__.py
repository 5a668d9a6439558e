"""`ml.*`: SageMaker runs the hosts. `backend` has the verbs."""
