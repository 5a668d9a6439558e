"""Messages for failed builds: causes recognised in the output, and remedies."""

import pytest

from herringbone.images.build_errors import explain

RUN_FAILED = "The command '/bin/sh -c sh /build/framework/install' returned a non-zero code: 1"


@pytest.mark.parametrize(
    ("line", "help_"),
    [
        ("OSError: [Errno 28] No space left on device", "in /var/lib/docker: `docker system df` shows"),
        ("herringbone: the base image has neither python3 nor apt-get", "take another --base-image, or put Python"),
        ("herringbone: the base image's Python is older than 3.10", "with Python 3.10 or newer"),
        ("herringbone: the base image's Python has no ensurepip", "came without pip's installer"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] x'))", "with --ca-bundle FILE"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "not those of the lock"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "no wheel of torch==2.13.0+cpu for the base"),
        ("NewConnectionError('<urllib3...>: Failed to establish', NameResolutionError())", "network cannot be reached"),
        ("W: Failed to fetch http://x  Temporary failure resolving 'deb.debian.org'", "network cannot be reached"),
    ],
)
def test_known_causes(line, help_):
    message = explain(["Step 6/24 : RUN", line], RUN_FAILED, image_folder="/var/lib/docker")
    assert message.startswith(f"the image cannot be built: {RUN_FAILED}. ")
    assert help_ in message
    assert message.endswith(f"  {line}")


def test_the_engines_own_error_is_searched_as_well():
    message = explain([], 'OCI runtime create failed: exec: "/bin/sh": no such file or directory', image_folder="")
    assert "The base image has no shell" in message


def test_the_text_of_the_dockerfile_is_no_symptom():
    dockerfile = "RUN command -v apt-get || { echo 'the base image has neither python3 nor apt-get'; exit 64; }"
    message = explain(
        [
            f"Step 3/24 : {dockerfile}",
            " ---> Running in 0a",
            "\x1b[91mboom\x1b[0m",
            "Removing intermediate container 0a",
        ],
        f"The command '/bin/sh -c {dockerfile}' returned a non-zero code: 1",
        image_folder="",
    )
    head, *output = message.splitlines()
    assert head.endswith("...' returned a non-zero code: 1")
    assert output == ["  boom"]


def test_an_unknown_cause_shows_the_last_lines_alone():
    lines = [f"line {number}" for number in range(100)]
    message = explain(lines, "boom", image_folder="").splitlines()
    assert message[0] == "the image cannot be built: boom"
    assert message[1:] == [f"  line {number}" for number in range(88, 100)]
