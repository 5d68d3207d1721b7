"""The Kubernetes control plane: API server, controller manager, scheduler, all of one module list."""

from gpubank.lab.access import ADMIN, MASTERS, look
from gpubank.lab.build import GoProgram
from gpubank.lab.components.base import LOOPBACK, Component, Context

VERSION = "1.37.2"
SERVICE_RANGE = "10.0.0.0/24"


def program(name: str, wrapper: str = "kubernetes") -> GoProgram:
    """Return how one of Kubernetes' own programs is built."""
    major, minor, _ = VERSION.split(".")
    stamp = "k8s.io/component-base/version"
    return GoProgram(
        name=name,
        version=VERSION,
        wrapper=wrapper,
        package=f"k8s.io/kubernetes/cmd/{name}",
        # A build from modules has no version of its own, and the API server reads its own to choose what it serves.
        variables=(
            (f"{stamp}.gitVersion", f"v{VERSION}"),
            (f"{stamp}.gitMajor", major),
            (f"{stamp}.gitMinor", minor),
        ),
    )


AUDIT_POLICY = """\
# What software under a service account of its own asks for, and nothing of the cluster's own parts: so an installation
# can be held against the rights that it was given.
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
  - {level: None, userGroups: ["system:serviceaccounts:kube-system"]}
  - {level: Metadata, userGroups: ["system:serviceaccounts"]}
  - {level: None}
"""


def _api_server(context: Context) -> list[str]:
    own, trusted = context.certificate("kube-apiserver"), context.authority.certificate
    etcd, tokens = context.certificate("kube-apiserver-etcd"), context.authority.key_pair("service-accounts")
    proxy, caller = context.certificate("front-proxy"), context.certificate("kube-apiserver-kubelet", group=MASTERS)
    return [
        f"--etcd-servers=https://{context.address('etcd')}",
        f"--etcd-cafile={trusted}",
        f"--etcd-certfile={etcd.certificate}",
        f"--etcd-keyfile={etcd.key}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        # Endpoints may not hold loopback addresses, and no pod of the lab calls the `kubernetes` service.
        "--endpoint-reconciler-type=none",
        f"--secure-port={context.port('kube-apiserver')}",
        f"--tls-cert-file={own.certificate}",
        f"--tls-private-key-file={own.key}",
        f"--client-ca-file={trusted}",
        "--authorization-mode=RBAC",
        "--anonymous-auth=false",
        f"--audit-policy-file={context.written('audit-policy.yaml', AUDIT_POLICY)}",
        f"--audit-log-path={context.log('audit')}",
        f"--service-account-issuer=https://kubernetes.default.svc.{context.name}.lab",
        f"--service-account-key-file={tokens.certificate}",
        f"--service-account-signing-key-file={tokens.key}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        # For aggregated APIs: whoever presents the front-proxy certificate may say whom it speaks for.
        f"--requestheader-client-ca-file={trusted}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={proxy.certificate}",
        f"--proxy-client-key-file={proxy.key}",
        "--enable-aggregator-routing",
        # For logs of and commands in containers, where a real kubelet joins the lab.
        f"--kubelet-client-certificate={caller.certificate}",
        f"--kubelet-client-key={caller.key}",
        f"--kubelet-certificate-authority={trusted}",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged",
        "--profiling=false",
    ]


def _api_server_ready(context: Context) -> str | None:
    admin = context.authority.issue(ADMIN, group=MASTERS)
    return look(context.address("kube-apiserver"), "/readyz", context=context.authority.client_context(admin))


def _behind(context: Context, name: str) -> list[str]:
    """Flags that the two clients of the API server share."""
    own, config = context.certificate(f"system:{name}"), context.kubeconfig(f"system:{name}")
    return [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        # The lookup of the request-header CA needs a role that only a real installation binds.
        "--authentication-skip-lookup",
        f"--client-ca-file={context.authority.certificate}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={context.port(name)}",
        f"--tls-cert-file={own.certificate}",
        f"--tls-private-key-file={own.key}",
        "--leader-elect=false",
    ]


def _healthy(context: Context, name: str) -> str | None:
    admin = context.authority.issue(ADMIN, group=MASTERS)
    return look(context.address(name), "/healthz", context=context.authority.client_context(admin))


def _controller_manager(context: Context) -> list[str]:
    tokens = context.authority.key_pair("service-accounts")
    return [
        *_behind(context, "kube-controller-manager"),
        # Nodes of the lab have no addresses to hand out.
        "--controllers=*,-node-ipam-controller",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={tokens.key}",
        f"--root-ca-file={context.authority.certificate}",
        # The defaults spare an API server that serves thousands of nodes' kubelets; here they only slow tests down.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]


def _scheduler(context: Context) -> list[str]:
    return [*_behind(context, "kube-scheduler"), "--kube-api-qps=200", "--kube-api-burst=400"]


API_SERVER = Component(
    name="kube-apiserver",
    program=program("kube-apiserver"),
    command=_api_server,
    ready=_api_server_ready,
    ports=("kube-apiserver",),
    depends_on=("etcd",),
    start_timeout=120,
    # It drains requests and watches on SIGTERM; a lab that goes down has nobody to drain for.
    stop_grace=3,
)
CONTROLLER_MANAGER = Component(
    name="kube-controller-manager",
    program=program("kube-controller-manager"),
    command=_controller_manager,
    ready=lambda context: _healthy(context, "kube-controller-manager"),
    ports=("kube-controller-manager",),
    depends_on=("kube-apiserver",),
)
SCHEDULER = Component(
    name="kube-scheduler",
    program=program("kube-scheduler"),
    command=_scheduler,
    ready=lambda context: _healthy(context, "kube-scheduler"),
    ports=("kube-scheduler",),
    depends_on=("kube-apiserver",),
)
