"""Write an image's bill of materials to standard output, as CycloneDX JSON: the packages of Python and of the system.

Usage: sbom.py PACKAGES.TSV [FOLDER...]. PACKAGES.TSV lists Debian's packages as `name<TAB>version<TAB>architecture`
lines; the file may be missing. Each FOLDER has Python packages in addition to this Python's own. The same content gives
the same bytes.
"""

import json
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path


def main(packages: str, *folders: str) -> None:
    components = [
        *(python_component(package) for package in distributions(path=[*sys.path, *folders])),
        *debian_components(Path(packages), Path("/etc/os-release")),
    ]
    by_address = {component["purl"]: component for component in components}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": [by_address[address] for address in sorted(by_address)],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


def python_component(package: Distribution) -> dict:
    name = package.metadata["Name"].lower().replace("_", "-").replace(".", "-")
    component = {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version.replace('+', '%2B')}",
    }
    # Only PEP 639's expression is short. The older field is free text, and may hold a whole license.
    license_ = package.metadata["License-Expression"]
    if license_:
        component["licenses"] = [{"expression": license_}]
    return component


def debian_components(packages: Path, release: Path) -> list:
    if not packages.exists():
        return []
    facts = dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line)
    system = facts.get("ID", "debian").strip('"')
    components = []
    for line in packages.read_text().splitlines():
        name, version, architecture = line.split("\t")
        address = f"pkg:deb/{system}/{name}@{version.replace('+', '%2B')}?arch={architecture}"
        components.append({"type": "library", "name": name, "version": version, "purl": address})
    return components


if __name__ == "__main__":
    main(*sys.argv[1:])
