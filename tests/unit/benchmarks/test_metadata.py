from benchmarks.metadata import measure


async def test_every_node_hears_of_every_pod_and_the_api_server_is_asked_nothing_meanwhile() -> None:
    found = await measure(nodes=3, pods=4, churn=9, rate=30)
    assert (found["never_heard"], len(found["lags"])) == (0, 9)
    assert found["requests_while_churning"] == 0
    assert found["requests"] == {"Pod": 2, "BusinessGroup": 2, "ResourceSlice": 2}, "a list and a watch of each"
    assert found["bytes_per_node"] > found["snapshot_bytes"]
