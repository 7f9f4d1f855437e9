"""Time messages by SimGrid (:func:`arrivals`): a script for a Python that has its module, which need not be this one.

Reads a JSON object from standard input, and prints a list: the second at which each message has arrived. The platform
is a star of nodes; fluid sharing without TCP's corrections (model CM02: Casanova and Marchal 2002). All latencies are
alike, and added behind the last byte.
"""

import heapq
import json
import sys
from collections import defaultdict

from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, this_actor

OPTIONS = ("network/model:CM02", "network/crosstraffic:no", "network/TCP-gamma:1e30", "network/weight-S:0")


def star(n_nodes, bytes_per_s):
    """Return the hosts of a star, each with a link that carries so much each way."""
    zone = NetZone.create_star_zone("nodes")
    hosts = []
    for node in range(n_nodes):
        host = zone.create_host(f"node{node}", 1e9)
        link = zone.create_split_duplex_link(f"link{node}", bytes_per_s)
        link.set_latency(0)
        link.seal()
        way = LinkInRoute(link, LinkInRoute.Direction.UP)
        zone.add_route(host.netpoint, None, None, None, [way], True)
        hosts.append(host)
    zone.seal()
    return hosts


def play(messages, latency_s, hosts, arrived_s):
    """Begin each message when it may begin, and write to a list when each has arrived."""
    following = defaultdict(list)
    for number, message in enumerate(messages):
        following[message[0]].append(number)
    starts = [(messages[number][1], number) for number in following[-1]]
    heapq.heapify(starts)
    numbers: list[int] = []  # of those in flight
    flying: list[Comm] = []
    while starts or flying:
        if starts and starts[0][0] <= Engine.clock:
            _, number = heapq.heappop(starts)
            _, _, source, target, n_bytes, _ = messages[number]
            numbers.append(number)
            flying.append(Comm.sendto_async(hosts[source], hosts[target], max(1, n_bytes)))
            continue
        if not flying:
            this_actor.sleep_until(starts[0][0])
            continue
        at = Comm.wait_any_for(flying, starts[0][0] - Engine.clock if starts else -1)
        if at < 0:
            continue  # it is time for another start
        number = numbers.pop(at)
        flying.pop(at)
        arrived_s[number] = Engine.clock + latency_s
        for later in following[number]:
            begins_s = Engine.clock if messages[later][5] else arrived_s[number] + messages[later][1]
            heapq.heappush(starts, (begins_s, later))


def arrivals(asked):
    """Return when each message has arrived, in seconds."""
    engine = Engine(["simgrid", *(f"--cfg={option}" for option in OPTIONS), "--log=root.thres:error"])
    hosts = star(asked["n_nodes"], asked["bytes_per_s"])
    messages, arrived_s = asked["messages"], [0.0] * len(asked["messages"])
    Actor.create("player", hosts[0], play, messages, asked["latency_s"], hosts, arrived_s)
    engine.run()
    return arrived_s


if __name__ == "__main__":
    print(json.dumps(arrivals(json.load(sys.stdin))))
