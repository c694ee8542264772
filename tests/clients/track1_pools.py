# type: ignore - its imports are another generation's, in an environment of its own
"""azure-batch 9 to 14: the account, pools, nodes, applications and certificates."""

from __future__ import annotations

import datetime

from azure.batch import models
from steps import check, fresh, publish, resource, until
from track1_client import (
    SLOTS,
    client,
    image,
    job,
    new_pool,
    one,
    optional,
    pool,
    refused,
    settled,
    text,
    wait_job,
)  # fmt: skip


@resource
def account():
    images = list(client.account.list_supported_images())
    check(images[0].os_type == models.OSType.linux, images[0])
    check(images[0].image_reference.publisher, images[0])
    name = pool()
    found = [c for c in client.account.list_pool_node_counts() if c.pool_id == name]
    check(found[0].dedicated.total == 1 and found[0].low_priority.total == 0, found)


@resource
def pools():
    name = fresh("pool")
    parameters = whole(name)
    client.pool.add(parameters)
    refused("PoolExists", client.pool.add, parameters)
    check(client.pool.exists(name) and not client.pool.exists("absent"), "what exists does")
    found = client.pool.get(name)
    check(getattr(found, SLOTS) == 4, found)
    check(found.state == models.PoolState.active, found.state)
    check(found.resize_timeout == datetime.timedelta(minutes=10), found.resize_timeout)
    check(found.user_accounts[0].password is None, "a password is never given back")
    check(found.start_task.user_identity.auto_user.elevation_level == "admin", found.start_task)
    check(settled(name, 1)[0].start_task_info.exit_code == 0, "the start task has run")
    listed = list(client.pool.list(models.PoolListOptions(filter=f"id eq '{name}'", select="id")))
    check([p.id for p in listed] == [name] and listed[0].vm_size is None, listed)
    resize(name)
    changed = models.PoolPatchParameter(metadata=[models.MetadataItem(name="a", value="b")])
    client.pool.patch(name, changed)
    check(client.pool.get(name).metadata[0].name == "a", "metadata is changed")
    client.pool.update_properties(
        name,
        models.PoolUpdatePropertiesParameter(
            certificate_references=[], application_package_references=[], metadata=[]
        ),
    )
    found = client.pool.get(name)
    check(not found.metadata and found.start_task is None, "properties are replaced")
    stale = models.PoolPatchOptions(if_match="0x1")
    refused("ConditionNotMet", client.pool.patch, name, models.PoolPatchParameter(), stale)
    client.pool.delete(name)
    until(lambda: not client.pool.exists(name), "the pool is gone")


def whole(name):
    admin = models.AutoUserSpecification(
        scope=models.AutoUserScope.pool, elevation_level=models.ElevationLevel.admin
    )
    start = models.StartTask(
        command_line="/bin/sh -c 'echo started > $AZ_BATCH_NODE_SHARED_DIR/mark'",
        user_identity=models.UserIdentity(auto_user=admin),
        environment_settings=[models.EnvironmentSetting(name="A", value="b")],
        wait_for_success=True,
        max_task_retry_count=1,
    )
    return models.PoolAddParameter(
        id=name,
        vm_size="Standard_D4s_v3",
        virtual_machine_configuration=image(),
        target_dedicated_nodes=1,
        target_low_priority_nodes=0,
        resize_timeout=datetime.timedelta(minutes=10),
        start_task=start,
        metadata=[models.MetadataItem(name="team", value="old")],
        user_accounts=[models.UserAccount(name="someone", password="not-shown")],
        task_scheduling_policy=models.TaskSchedulingPolicy(node_fill_type="pack"),
        **{SLOTS: 4},
    )


def resize(name):
    client.pool.resize(
        name, models.PoolResizeParameter(target_dedicated_nodes=2, target_low_priority_nodes=1)
    )
    found = settled(name, 3)
    check(sum(not n.is_dedicated for n in found) == 1, found)
    client.pool.resize(
        name,
        models.PoolResizeParameter(
            target_dedicated_nodes=2,
            target_low_priority_nodes=0,
            node_deallocation_option=models.ComputeNodeDeallocationOption.terminate,
        ),
    )
    settled(name, 2)
    refused("OperationInvalidForCurrentState", client.pool.stop_resize, name)


@resource
def autoscale():
    name = new_pool()
    client.pool.enable_auto_scale(
        name,
        auto_scale_formula="$TargetDedicatedNodes = 2;",
        auto_scale_evaluation_interval=datetime.timedelta(minutes=5),
    )
    settled(name, 2)
    run = client.pool.evaluate_auto_scale(name, "$x = 3; $TargetDedicatedNodes = $x;")
    check("$TargetDedicatedNodes=3" in run.results and run.error is None, run)
    run = client.pool.evaluate_auto_scale(name, "$TargetDedicatedNodes = 1 / nothing;")
    check(run.error is not None, "a formula that fails is answered, not refused")
    found = client.pool.get(name)
    check(found.enable_auto_scale and found.auto_scale_run.results, found)
    client.pool.disable_auto_scale(name)
    settled(name, 2)
    refused("OperationNotValidOnPool", client.pool.evaluate_auto_scale, name, "$x = 1;")
    client.pool.delete(name)


@resource
def nodes():
    name = new_pool(2)
    node = next(iter(client.compute_node.list(name))).id
    client.compute_node.disable_scheduling(name, node)
    check(client.compute_node.get(name, node).scheduling_state == "disabled", "offline")
    client.compute_node.enable_scheduling(name, node)
    check(client.compute_node.get(name, node).scheduling_state == "enabled", "back")
    client.compute_node.add_user(name, node, models.ComputeNodeUser(name="me", password="p"))
    client.compute_node.delete_user(name, node, "me")
    check(client.compute_node.get_remote_login_settings(name, node).remote_login_port, "a port")
    client.compute_node.reboot(name, node)
    settled(name, 2)
    with optional():
        client.compute_node.reimage(name, node)  # of a machine by image, as the service has it
        settled(name, 2)
    client.pool.remove_nodes(name, models.NodeRemoveParameter(node_list=[node]))
    check(node not in {n.id for n in settled(name, 1)}, "it is removed")
    refused("NodeNotFound", client.compute_node.get, name, node)
    client.pool.delete(name)


@resource
def auto_pools():
    specification = models.AutoPoolSpecification(
        auto_pool_id_prefix="mine",
        pool_lifetime_option=models.PoolLifetimeOption.job,
        pool=models.PoolSpecification(
            vm_size="Standard_D2s_v3",
            virtual_machine_configuration=image(),
            target_dedicated_nodes=1,
        ),
    )
    name = job(pool_info=models.PoolInformation(auto_pool_specification=specification))
    made = client.job.get(name).execution_info.pool_id
    check(made.startswith("mine_"), made)
    check(one(name, "t", "/bin/true").execution_info.exit_code == 0, "it runs there")
    client.job.terminate(name)
    wait_job(name)
    until(lambda: not client.pool.exists(made), "the pool goes with its job")


@resource
def applications():
    app = fresh("App")
    publish(app, "1.0", hello="hello 1.0")
    found = client.application.get(app)
    check((found.id, found.versions) == (app, ["1.0"]), found)
    check(app in {a.id for a in client.application.list()}, "it is listed")
    reference = models.ApplicationPackageReference(application_id=app, version="1.0")
    name = new_pool(application_package_references=[reference])
    variable = f"AZ_BATCH_APP_PACKAGE_{app}_1.0".replace("-", "_").replace(".", "_")
    jobs = job(name)
    one(jobs, "pool", f"/bin/sh -c 'cat ${variable}/hello'")
    check(text(jobs, "pool") == "hello 1.0", text(jobs, "pool"))
    other = job()
    one(other, "own", f"/bin/sh -c 'cat ${variable}/hello'",
        application_package_references=[reference])  # fmt: skip
    check(text(other, "own") == "hello 1.0", text(other, "own"))
    client.pool.delete(name)


@resource
def certificates():
    thumb = "0123456789abcdef0123456789abcdef01234567"
    client.certificate.add(
        models.CertificateAddParameter(
            thumbprint=thumb, thumbprint_algorithm="sha1", data="MIIB", password="x",
            certificate_format=models.CertificateFormat.pfx,
        )
    )  # fmt: skip
    found = client.certificate.get("sha1", thumb)
    check(found.state == models.CertificateState.active, found)
    check(thumb in {c.thumbprint for c in client.certificate.list()}, "listed")
    reference = models.CertificateReference(thumbprint=thumb, thumbprint_algorithm="sha1")
    name = new_pool(0, certificate_references=[reference])
    check(client.pool.get(name).certificate_references[0].thumbprint == thumb, "kept")
    client.pool.delete(name)
    until(lambda: not client.pool.exists(name), "nothing uses it")
    client.certificate.delete("sha1", thumb)
    until(lambda: thumb not in {c.thumbprint for c in client.certificate.list()}, "it is deleted")
