"""Ports that a webhook has no business at.

80, 443 and 1024 upwards are open, minus the list below: services that act on what an HTTP request happens to contain,
or that trust whoever can reach them. WHATWG Fetch ("bad port") from 1024 on, and the usual infrastructure.
"""

from __future__ import annotations

FIRST_UNPRIVILEGED = 1024
WEB_PORTS = frozenset({80, 443})

BAD_PORTS: dict[int, str] = {
    1433: "Microsoft SQL Server",
    1434: "Microsoft SQL Server browser",
    1521: "Oracle database",
    1719: "H.323",
    1720: "H.323",
    1723: "PPTP",
    1883: "MQTT",
    2049: "NFS",
    2181: "ZooKeeper",
    2375: "Docker without TLS",
    2376: "Docker",
    2377: "Docker Swarm",
    2379: "etcd",
    2380: "etcd peers",
    3306: "MySQL",
    3389: "Remote Desktop",
    3659: "Apple SASL",
    4045: "NFS lockd",
    4190: "ManageSieve",
    4222: "NATS",
    4369: "Erlang port mapper",
    5060: "SIP",
    5061: "SIP over TLS",
    5432: "PostgreSQL",
    5433: "PostgreSQL, second instance",
    5671: "AMQP over TLS",
    5672: "AMQP",
    5900: "VNC",
    5985: "WinRM",
    5986: "WinRM over TLS",
    6000: "X11",
    6379: "Redis",
    6380: "Redis over TLS",
    6432: "PgBouncer",
    6443: "Kubernetes API",
    6566: "SANE",
    6665: "IRC",
    6666: "IRC",
    6667: "IRC",
    6668: "IRC",
    6669: "IRC",
    6679: "IRC over TLS",
    6697: "IRC over TLS",
    7000: "Cassandra nodes",
    7001: "Cassandra nodes over TLS",
    8300: "Consul servers",
    8301: "Consul gossip",
    8302: "Consul gossip",
    8500: "Consul API",
    9042: "Cassandra",
    9092: "Kafka",
    9200: "Elasticsearch",
    9300: "Elasticsearch nodes",
    9418: "git",
    10080: "Amanda",
    10250: "kubelet",
    10255: "kubelet, read only",
    10256: "kube-proxy",
    11211: "memcached",
    26257: "CockroachDB",
    27017: "MongoDB",
    27018: "MongoDB",
    27019: "MongoDB",
    50070: "HDFS",
    61613: "STOMP",
    61616: "ActiveMQ",
}


def is_open_port(port: int) -> bool:
    """True for the ports that are open without any setting."""
    return port in WEB_PORTS or (FIRST_UNPRIVILEGED <= port <= 65535 and port not in BAD_PORTS)
