"""A client of Kubernetes that waits until the server is initialized, and repeats requests as client-go does."""

from kubernetes import client
from urllib3.exceptions import ProtocolError
from urllib3.util.retry import Retry


class ClientGoRetry(Retry):
    """Any verb when the server says when; GET alone, after a second, when the connection broke."""

    RETRY_AFTER_STATUS_CODES = frozenset([429, *range(500, 600)])

    def increment(self, method=None, url=None, response=None, error=None, **more):
        if error is not None and not (method == "GET" and isinstance(error, ProtocolError)):
            raise error
        return super().increment(method, url, response, error, **more)

    def get_backoff_time(self):
        return 1 if self.history and self.history[-1].error else 0


def if_ready_client(configuration):
    # No status_forcelist: it would repeat what failed without Retry-After, and may have been done.
    configuration.retries = ClientGoRetry(10, allowed_methods=None, raise_on_status=False)
    api = client.ApiClient(configuration)
    api.set_default_header("X-Kubernetes-If-Ready", "true")
    return api
