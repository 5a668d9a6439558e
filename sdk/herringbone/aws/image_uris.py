"""Name the images of AWS: Deep Learning Containers, and those of scikit-learn and XGBoost. Pure.

    framework, versions, device, region -> ACCOUNT.dkr.ecr.REGION.amazonaws.com/REPOSITORY:TAG

Sources: "Available Deep Learning Containers images" and "Docker registry paths" in AWS's documentation, compared with
the tables of `sagemaker` 2.257.7.
"""

from __future__ import annotations

from herringbone.aws.instance_types import num_gpus
from herringbone_contract.errors import OptionError, UnsupportedError

_MOST_REGIONS = "763104351884"
# Accounts of the Deep Learning Containers where it is not the one of most regions.
_OTHER_REGIONS = {
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "ap-east-2": "975050140332",
    "ap-northeast-3": "364406365360",
    "ap-south-2": "772153158452",
    "ap-southeast-3": "907027046896",
    "ap-southeast-4": "457447274322",
    "ap-southeast-5": "550225433462",
    "ap-southeast-6": "633930458069",
    "ap-southeast-7": "590183813437",
    "ca-west-1": "204538143572",
    "cn-north-1": "727897471807",
    "cn-northwest-1": "727897471807",
    "eu-central-2": "380420809688",
    "eu-south-1": "692866216735",
    "eu-south-2": "503227376785",
    "il-central-1": "780543022126",
    "me-central-1": "914824155844",
    "me-south-1": "217643126080",
    "mx-central-1": "637423239942",
    "us-gov-east-1": "446045086412",
    "us-gov-west-1": "442386744353",
}
# Accounts of the images of scikit-learn and XGBoost.
_ALGORITHMS = {
    "af-south-1": "510948584623",
    "ap-east-1": "651117190479",
    "ap-northeast-1": "354813040037",
    "ap-northeast-2": "366743142698",
    "ap-northeast-3": "867004704886",
    "ap-south-1": "720646828776",
    "ap-south-2": "628508329040",
    "ap-southeast-1": "121021644041",
    "ap-southeast-2": "783357654285",
    "ap-southeast-3": "951798379941",
    "ap-southeast-4": "106583098589",
    "ca-central-1": "341280168497",
    "ca-west-1": "190319476487",
    "cn-north-1": "450853457545",
    "cn-northwest-1": "451049120500",
    "eu-central-1": "492215442770",
    "eu-central-2": "680994064768",
    "eu-north-1": "662702820516",
    "eu-south-1": "978288397137",
    "eu-south-2": "104374241257",
    "eu-west-1": "141502667606",
    "eu-west-2": "764974769150",
    "eu-west-3": "659782779980",
    "il-central-1": "898809789911",
    "me-central-1": "272398656194",
    "me-south-1": "801668240914",
    "sa-east-1": "737474898029",
    "us-east-1": "683313688378",
    "us-east-2": "257758044811",
    "us-gov-east-1": "237065988967",
    "us-gov-west-1": "414596584902",
    "us-west-1": "746614075791",
    "us-west-2": "246618743249",
}
_REPOSITORIES = {"sklearn": "sagemaker-scikit-learn", "xgboost": "sagemaker-xgboost"}
_LEARNING = ("pytorch", "tensorflow", "mxnet")
# (version of transformers, framework and its version) -> Python, and the end of the tag.
_HUGGING_FACE = {
    ("4.17.0", "pytorch1.10.2"): ("py38", "cu113-ubuntu20.04"),
    ("4.17.0", "tensorflow2.6.3"): ("py38", "cu112-ubuntu20.04"),
    ("4.26.0", "pytorch1.13.1"): ("py39", "cu117-ubuntu20.04"),
    ("4.28.1", "pytorch2.0.0"): ("py310", "cu118-ubuntu20.04"),
    ("4.36.0", "pytorch2.1.0"): ("py310", "cu121-ubuntu20.04"),
    ("4.46.1", "pytorch2.3.0"): ("py311", "cu121-ubuntu20.04"),
    ("4.48.0", "pytorch2.3.0"): ("py311", "cu121-ubuntu20.04"),
    ("4.49.0", "pytorch2.5.1"): ("py311", "cu124-ubuntu22.04"),
    ("4.55.0", "pytorch2.7.1"): ("py312", "cu128-ubuntu22.04"),
    ("4.56.2", "pytorch2.8.0"): ("py312", "cu129-ubuntu22.04"),
}


def image_uri(
    framework: str,
    *,
    region: str,
    version: str | None,
    py_version: str | None = None,
    instance_type: str = "ml.m5.xlarge",
    base_version: str | None = None,
) -> str:
    """Return the name of AWS's training image.

    >>> image_uri("pytorch", region="eu-west-1", version="2.1.0", py_version="py310", instance_type="ml.p3.2xlarge")
    '763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.1.0-gpu-py310'
    >>> image_uri("sklearn", region="us-east-1", version="1.4-2")
    '683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-scikit-learn:1.4-2-cpu-py3'

    `framework` is pytorch, tensorflow, mxnet, huggingface, sklearn or xgboost. For huggingface, `version` is that of
    transformers, and `base_version` is the framework below it, such as pytorch2.1.0. Raises `OptionError` for a missing
    version, and `UnsupportedError` where AWS has no such image, or it is not known here.
    """
    if version is None:
        raise OptionError(f"{framework}: AWS names its images by version; give one, or image_uri")
    if framework in _REPOSITORIES:
        account = _ALGORITHMS.get(region)
        if account is None:
            raise UnsupportedError(
                f"image_uri: no account of {framework}'s images is known in {region}; give image_uri"
            )
        return (
            f"{_registry(account, region)}/{_REPOSITORIES[framework]}:{version}{_algorithm_suffix(framework, version)}"
        )
    account = _OTHER_REGIONS.get(region, _MOST_REGIONS)
    if framework == "huggingface":
        return f"{_registry(account, region)}/{_hugging_face(version, base_version, py_version, instance_type)}"
    if framework not in _LEARNING:
        raise UnsupportedError(f"image_uri: no image of AWS's is known for {framework}; give image_uri")
    if py_version is None:
        raise OptionError("py_version: missing; AWS's images are named by it, as in py310; or give image_uri")
    device = "cpu" if num_gpus(instance_type) == 0 else "gpu"
    return f"{_registry(account, region)}/{framework}-training:{version}-{device}-{py_version}"


def _algorithm_suffix(framework: str, version: str) -> str:
    # Since 1.2-1 XGBoost's tags are the version alone.
    old_xgboost = framework == "xgboost" and version in ("0.90-1", "0.90-2", "1.0-1")
    return "-cpu-py3" if framework == "sklearn" or old_xgboost else ""


def _hugging_face(version: str, base: str | None, py_version: str | None, instance_type: str) -> str:
    row = _HUGGING_FACE.get((version, base or ""))
    known = ", ".join(f"{transformers} with {framework}" for transformers, framework in _HUGGING_FACE)
    if row is None:
        raise UnsupportedError(
            f"transformers_version: no image of AWS's is known for {version} with {base or 'no framework'}; give"
            f" image_uri, or one of: {known}"
        )
    python, suffix = row
    if py_version not in (None, python):
        raise OptionError(
            f"py_version: AWS's image of transformers {version} with {base} has {python}, not {py_version}"
        )
    if num_gpus(instance_type) == 0:
        raise UnsupportedError(f"instance_type: AWS's training images of Hugging Face need GPUs, not {instance_type}")
    assert base is not None
    framework = "pytorch" if base.startswith("pytorch") else "tensorflow"
    number = base.removeprefix(framework)
    return f"huggingface-{framework}-training:{number}-transformers{version}-gpu-{python}-{suffix}"


def _registry(account: str, region: str) -> str:
    return f"{account}.dkr.ecr.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
