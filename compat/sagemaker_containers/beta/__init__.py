"""`sagemaker_containers.beta`: a folder of names."""
