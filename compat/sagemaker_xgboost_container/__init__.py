"""`sagemaker_xgboost_container`: the names of AWS's XGBoost image that scripts import."""
