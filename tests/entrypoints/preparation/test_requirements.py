"""A failure of pip names its cause, and pip gets the settings that the backend sent."""

import json

from herringbone_entry.preparation.requirements import _pip_settings, explain

# pip 23.2 behind a proxy that signs certificates itself.
BEHIND_PROXY = [
    "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'SSLError(SSLCertVerificationError(1, "
    "'[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in certificate chain'))'",
    "ERROR: Could not find a version that satisfies the requirement hbtiny (from versions: none)",
    "ERROR: No matching distribution found for hbtiny",
]


def test_an_untrusted_certificate_is_the_cause():
    text = explain(BEHIND_PROXY, None)
    assert text.startswith("the package index's certificate is not signed by the system's certificates")
    assert "set PIP_CERT" in text
    assert "bake_requirements=True" in text
    assert text.endswith("No matching distribution found for hbtiny")
    assert "PIP_CERT=/opt/ca.pem" in explain(BEHIND_PROXY, "/opt/ca.pem")


def test_other_failures_are_pips_own_words():
    assert explain(BEHIND_PROXY[1:], None) == " ".join(BEHIND_PROXY[1:])
    assert explain(["Collecting a", "Killed"], None) == "Collecting a Killed"


def test_settings_of_the_backend_are_for_pip():
    assert _pip_settings({"HERRINGBONE_PIP": json.dumps({"PIP_CERT": "/ca.pem"})}) == {"PIP_CERT": "/ca.pem"}
    assert _pip_settings({}) == {}
