"""Hyperparameters that are masked."""

import pytest

from herringbone_contract.masking import is_mask, masked_hyperparameters


@pytest.mark.parametrize(
    "name",
    ["token", "hf_token", "HF-TOKEN", "api_key", "apikey", "wandb_api_key", "AWS_SECRET_ACCESS_KEY", "db_password"],
)
def test_secret_texts_are_replaced_whether_encoded_or_not(name):
    assert masked_hyperparameters({name: '"hunter2"'}) == {name: '"******"'}
    assert masked_hyperparameters({name: "hunter2"}) == {name: "******"}


@pytest.mark.parametrize("name", ["tokenizer", "max_tokens", "keys", "monkey", "num_key_heads_x", "epochs"])
def test_other_names_stay(name):
    if name == "num_key_heads_x":
        assert masked_hyperparameters({name: "8"}) == {name: "8"}  # a secret-sounding name with a number
    else:
        assert masked_hyperparameters({name: '"a"'}) == {name: '"a"'}


def test_numbers_are_no_secrets():
    values = {"token": "3", "key": 3, "secret": "true"}
    assert masked_hyperparameters(values) == values


def test_a_mask_is_recognised():
    assert is_mask("******")
    assert is_mask('"******"')
    assert not is_mask("hunter2")
