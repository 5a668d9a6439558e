"""The base of the estimators: SDK v2's habits on top of Herringbone's classes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from herringbone import InstanceGroup, OptionError
from herringbone.aws.image_uris import image_uri
from herringbone.plan.frameworks import IMAGES

# The instance type of all jobs of these names, whatever the notebook says: its jobs then run there.
INSTANCE_TYPE_VARIABLE = "HERRINGBONE_INSTANCE_TYPE"


def adapted(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return an estimator's keyword arguments with the instance type that the environment names.

    >>> adapted({"instance_type": "ml.p3.2xlarge"}, {"HERRINGBONE_INSTANCE_TYPE": "local_process"})
    {'instance_type': 'local_process'}
    """
    values = dict(options)
    chosen = environ.get(INSTANCE_TYPE_VARIABLE)
    if not chosen:
        return values
    groups = values.get("instance_groups")
    if groups:
        values["instance_groups"] = [
            InstanceGroup(group.instance_group_name, chosen, group.instance_count) for group in groups
        ]
    else:
        values["instance_type"] = chosen
    return values


def base_of(options: Mapping[str, Any]) -> str | None:
    """Return the framework below transformers as AWS's images name it.

    >>> base_of({"pytorch_version": "2.1.0"})
    'pytorch2.1.0'
    """
    for framework in ("pytorch", "tensorflow"):
        if version := options.get(f"{framework}_version"):
            return f"{framework}{version}"
    return None


def region_of(session: Any, environ: Mapping[str, str]) -> str:
    """Return the region of a notebook's jobs: its session's, else that of AWS's variables. Raises `OptionError`."""
    region = getattr(session, "boto_region_name", None) or getattr(session, "region_name", None)
    region = region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise OptionError("image_uri: AWS's images are named by region; set AWS_REGION, or give image_uri")
    return str(region)


if TYPE_CHECKING:
    # The class that follows this one in each estimator's bases.
    from herringbone import Estimator as _Base
else:
    _Base = object


class Notebook(_Base):
    """Adapts keyword arguments, and names AWS's image on `ml.*`; the first base of each estimator here."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options = adapted(options, os.environ)
        super().__init__(*arguments, **options)
        framework = IMAGES.get(type(self).__name__)
        kind = str(self.instance_type)
        if self.image_uri is None and framework is not None and kind.startswith("ml."):
            # As SDK v2 does. Herringbone's own classes ask for image_uri there.
            self.image_uri = image_uri(
                framework,
                region=region_of(self.options.sagemaker_session, os.environ),
                version=options.get("transformers_version") or self.options.framework_version,
                py_version=self.options.py_version,
                instance_type=kind,
                base_version=base_of(options),
            )
