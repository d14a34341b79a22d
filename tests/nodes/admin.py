"""TLS as the administrator of kubeadm's admin.conf ($KUBECONFIG), for the clients beside this file."""
import base64
import os
import re
import ssl
import tempfile

KUBECONFIG = os.environ.get("KUBECONFIG", "/etc/kubernetes/admin.conf")


def context():
    with open(KUBECONFIG, encoding="utf-8") as file:
        text = file.read()
    files = {}
    for key in ("certificate-authority-data", "client-certificate-data", "client-key-data"):
        data = base64.b64decode(re.search(key + r": (\S+)", text).group(1))
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(data)
        files[key] = file.name
    made = ssl.create_default_context(cafile=files["certificate-authority-data"])
    made.load_cert_chain(files["client-certificate-data"], files["client-key-data"])
    for name in files.values():
        os.unlink(name)
    return made
