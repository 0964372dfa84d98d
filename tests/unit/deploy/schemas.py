"""The custom resources of deploy/, as far as it uses them: from their CRDs, with every other field refused."""

from typing import Any

TEXT, PORT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS = {"type": "object", "additionalProperties": TEXT, "minProperties": 1}


def fields(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def items(schema: Any, least: int = 1, most: int = 16) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": least, "maxItems": most}


def resource(spec: Any) -> dict[str, Any]:
    metadata = fields("name", name=TEXT, namespace=TEXT, labels=LABELS, annotations=LABELS)
    return fields("apiVersion kind metadata spec", apiVersion=TEXT, kind=TEXT, metadata=metadata, spec=spec)


_MATCH = fields("path", path=fields("type value", type={"enum": ["Exact", "PathPrefix"]}, value=TEXT))
_BACKEND = fields("name", group=TEXT, kind=TEXT, name=TEXT, port=PORT, weight={"type": "integer", "minimum": 0})
_ROUTE = fields(
    "parentRefs rules",
    parentRefs=items(fields("name", name=TEXT, namespace=TEXT, sectionName=TEXT)),
    hostnames=items(TEXT),
    rules=items(fields("matches backendRefs", matches=items(_MATCH), backendRefs=items(_BACKEND))),
)
_HASH = fields("type header", type={"enum": ["SourceIP", "Header", "Cookie"]}, header=fields("name", name=TEXT))
_TRAFFIC = fields(
    "targetRefs loadBalancer",
    targetRefs=items(fields("group kind name", group=TEXT, kind=TEXT, name=TEXT)),
    loadBalancer=fields("type consistentHash", type={"const": "ConsistentHash"}, consistentHash=_HASH),
)
_POOL = fields(
    "selector targetPorts endpointPickerRef",
    selector=fields("matchLabels", matchLabels=LABELS),
    targetPorts=items(fields("number", number=PORT), most=8),
    endpointPickerRef=fields(
        "name port",
        group=TEXT,
        kind=TEXT,
        name=TEXT,
        port=fields("number", number=PORT),
        failureMode={"enum": ["FailOpen", "FailClose"]},
    ),
)
_EMPTY = fields()
_LLM = fields(
    "model replicas router template",
    model=fields("uri name", uri={"type": "string", "pattern": r"^(hf|s3|pvc|oci)://"}, name=TEXT),
    replicas={"type": "integer", "minimum": 0},
    router=fields("", gateway=_EMPTY, route=_EMPTY, scheduler=_EMPTY),
    template={"type": "object"},  # a pod's spec: checked as that
)
_PICKER = fields(
    "apiVersion kind plugins requestHandler schedulingProfiles",
    apiVersion={"const": "inference.networking.x-k8s.io/v1alpha1"},
    kind={"const": "EndpointPickerConfig"},
    plugins=items(
        fields(
            "type",
            type={"enum": ["passthrough-parser", "session-affinity-filter", "queue-scorer", "max-score-picker"]},
            parameters=fields(
                "strategy sessionIdConfig",
                strategy={"enum": ["session_id", "encoded_endpoint_header"]},
                sessionIdConfig=fields(
                    "sources",
                    sources=items(fields("header", header={"const": "x-session-id"})),
                    evictionTtlSeconds={"type": "number", "exclusiveMinimum": 0},
                ),
            ),
        )
    ),
    requestHandler=fields("parsers", parsers=items(fields("pluginRef", pluginRef=TEXT))),
    schedulingProfiles=items(
        fields("name plugins", name=TEXT, plugins=items(fields("pluginRef", pluginRef=TEXT, weight={"type": "number"})))
    ),
)

SCHEMAS = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): resource(_ROUTE),
    ("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"): resource(_TRAFFIC),
    ("inference.networking.k8s.io/v1", "InferencePool"): resource(_POOL),
    ("serving.kserve.io/v1alpha2", "LLMInferenceService"): resource(_LLM),
    ("inference.networking.x-k8s.io/v1alpha1", "EndpointPickerConfig"): _PICKER,
    ("kustomize.config.k8s.io/v1beta1", "Kustomization"): fields(
        "apiVersion kind resources",
        apiVersion=TEXT,
        kind=TEXT,
        resources=items(TEXT),
        images=items(fields("name newTag", name=TEXT, newTag={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"})),
    ),
}
