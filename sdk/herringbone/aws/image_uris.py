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
# The first version of each framework whose image has the name below; AWS keeps older ones in other accounts.
_LEARNING = {"pytorch": (1, 2), "tensorflow": (1, 13), "mxnet": (1, 4, 1)}
# The Python of the images from a version on, where each version has one alone.
_PYTHONS = {
    "pytorch": {(1, 9): "py38", (1, 13): "py39", (2, 0): "py310", (2, 3): "py311", (2, 6): "py312"},
    "tensorflow": {(2, 2): "py37", (2, 6): "py38", (2, 8): "py39", (2, 12): "py310", (2, 19): "py312"},
    "mxnet": {(1, 7): "py3", (1, 8): "py37", (1, 9): "py38"},
}
# Algorithms of AWS's own: their images train in its service alone.
_ALGORITHMS_OF_AWS = (
    "blazingtext", "factorization-machines", "forecasting-deepar", "image-classification",
    "image-classification-neo", "ipinsights", "kmeans", "knn", "lda", "linear-learner", "ntm", "object-detection",
    "object2vec", "pca", "randomcutforest", "semantic-segmentation", "seq2seq", "autogluon",
)  # fmt: skip
# (version of transformers, framework and its version) -> Python, and the end of the tag.
_HUGGING_FACE = {
    (transformers, base): (python, system)
    for transformers, base, python, system in (
        row.split()
        for row in """
            4.4.2 pytorch1.6.0 py36 -
            4.4.2 tensorflow2.4.1 py37 -
            4.5.0 pytorch1.6.0 py36 -
            4.5.0 tensorflow2.4.1 py37 -
            4.6.1 pytorch1.6.0 py36 cu110-ubuntu18.04
            4.6.1 pytorch1.7.1 py36 cu110-ubuntu18.04
            4.6.1 pytorch1.8.1 py36 cu111-ubuntu18.04
            4.6.1 tensorflow2.4.1 py37 cu110-ubuntu18.04
            4.10.2 pytorch1.8.1 py36 cu110-ubuntu18.04
            4.10.2 pytorch1.9.0 py38 cu111-ubuntu20.04
            4.10.2 tensorflow2.4.1 py37 cu110-ubuntu18.04
            4.10.2 tensorflow2.5.1 py37 cu112-ubuntu18.04
            4.11.0 pytorch1.9.0 py38 cu111-ubuntu20.04
            4.11.0 tensorflow2.5.1 py37 cu112-ubuntu18.04
            4.12.3 pytorch1.9.1 py38 cu111-ubuntu20.04
            4.12.3 tensorflow2.5.1 py37 cu112-ubuntu18.04
            4.17.0 pytorch1.10.2 py38 cu113-ubuntu20.04
            4.17.0 tensorflow2.6.3 py38 cu112-ubuntu20.04
            4.26.0 pytorch1.13.1 py39 cu117-ubuntu20.04
            4.28.1 pytorch2.0.0 py310 cu118-ubuntu20.04
            4.36.0 pytorch2.1.0 py310 cu121-ubuntu20.04
            4.46.1 pytorch2.3.0 py311 cu121-ubuntu20.04
            4.48.0 pytorch2.3.0 py311 cu121-ubuntu20.04
            4.49.0 pytorch2.5.1 py311 cu124-ubuntu22.04
            4.55.0 pytorch2.7.1 py312 cu128-ubuntu22.04
            4.56.2 pytorch2.8.0 py312 cu129-ubuntu22.04
        """.strip().splitlines()
    )
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
    if framework in _ALGORITHMS_OF_AWS:
        raise UnsupportedError(
            f"image_uri: {framework} is an algorithm of AWS's own, whose image runs in its service alone; train with a"
            " script and a framework here, or use AWS's SDK for it"
        )
    if version is None:
        raise OptionError(f"{framework}: AWS names its images by version; give one, or image_uri")
    if framework in _REPOSITORIES:
        _check_algorithm(framework, version, instance_type)
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
    numbers = _numbers(version)
    if numbers < _LEARNING[framework]:
        first = ".".join(map(str, _LEARNING[framework]))
        raise UnsupportedError(f"image_uri: AWS's images before {framework} {first} have other names; give image_uri")
    py_version = py_version or _python(framework, numbers)
    if py_version is None:
        raise OptionError("py_version: missing; AWS's images are named by it, as in py310; or give image_uri")
    device = "cpu" if num_gpus(instance_type) == 0 else "gpu"
    return f"{_registry(account, region)}/{framework}-training:{version}-{device}-{py_version}"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version that is no algorithm's: a short one stands for its first release."""
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))


def _python(framework: str, numbers: tuple[int, ...]) -> str | None:
    rows = [python for first, python in _PYTHONS[framework].items() if numbers >= first]
    return rows[-1] if rows else None


def _check_algorithm(framework: str, version: str, instance_type: str) -> None:
    if version in ("1", "latest"):
        raise UnsupportedError(
            f"image_uri: {framework} {version} is an algorithm of AWS's own, without scripts; give one such as 1.7-1"
        )
    if _algorithm_suffix(framework, version) and num_gpus(instance_type):
        raise UnsupportedError(f"instance_type: AWS's image of {framework} {version} uses no GPU; give a type without")


def _algorithm_suffix(framework: str, version: str) -> str:
    # Since 1.2-1 XGBoost's tags are the version alone.
    old_xgboost = framework == "xgboost" and version in ("0.90-1", "0.90-2", "1.0-1")
    return "-cpu-py3" if framework == "sklearn" or old_xgboost else ""


def _hugging_face(version: str, base: str | None, py_version: str | None, instance_type: str) -> str:
    key = next((key for key in _HUGGING_FACE if _is(version, key[0]) and base is not None and _is(base, key[1])), None)
    if key is None:
        known = ", ".join(f"{transformers} with {framework}" for transformers, framework in _HUGGING_FACE)
        raise UnsupportedError(
            f"transformers_version: no image of AWS's is known for {version} with {base or 'no framework'}; give"
            f" image_uri, or one of: {known}"
        )
    python, system = _HUGGING_FACE[key]
    if py_version not in (None, python):
        raise OptionError(
            f"py_version: AWS's image of transformers {version} with {base} has {python}, not {py_version}"
        )
    if num_gpus(instance_type) == 0:
        raise UnsupportedError(f"instance_type: AWS's training images of Hugging Face need GPUs, not {instance_type}")
    assert base is not None
    framework = "pytorch" if base.startswith("pytorch") else "tensorflow"
    # The tag has the versions as they were written.
    tag = f"{base.removeprefix(framework)}-transformers{version}-gpu-{python}"
    return f"huggingface-{framework}-training:{tag}{'' if system == '-' else f'-{system}'}"


def _is(written: str, full: str) -> bool:
    """Say whether a version is a full one, or its short form without the last number."""
    return written in (full, full.rpartition(".")[0])


def _registry(account: str, region: str) -> str:
    return f"{account}.dkr.ecr.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
