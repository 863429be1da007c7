"""Call a webhook when a run of the pipeline fails, or when verify finds a different result.

    python -m deploy.webhook https://hooks.example.org/abc

It uses the server of PREFECT_API_URL, otherwise that of `tandem ui`. The request is a POST of {"text": "..."}, which
Slack, Mattermost and Teams accept. The address is stored encrypted, in a Webhook block of Prefect. Another call
replaces it; Prefect's page Automations pauses or deletes it.
"""

import sys

from prefect.automations import Automation
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.events.actions import CallWebhook
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.settings import get_current_settings, temporary_settings

from flows.ui import running_servers

BLOCK, NAME = "tandem", "Call a webhook when a run fails or verify finds a difference"
# Prefect fills in the fields; `tojson` quotes the text, because a message may contain quotes and line breaks.
TEXT = '[flow.name, flow_run.name, flow_run.state.name, flow_run.state.message or ""] | join(": ") | tojson'
PAYLOAD = '{"text": {{ ' + TEXT + " }}}"


def main(arguments: list[str]) -> None:
    if len(arguments) != 1 or not arguments[0].startswith("http"):
        sys.exit(f"error: give one address, such as https://hooks.example.org/abc; received {arguments}")
    [url] = arguments
    api = get_current_settings().api.url or f"{running_servers().get('prefect', '')}/api"
    if api == "/api":
        sys.exit("error: no Prefect server; start `tandem ui`, or set PREFECT_API_URL")
    with temporary_settings({"api.url": api}):
        block = Webhook(url=url).save(BLOCK, overwrite=True)
        with get_client(sync_client=True) as client:
            for old in client.read_automations_by_name(NAME):
                client.delete_automation(old.id)
        # A failed stage is a flow run too: only the flows of the deployments count.
        flows = {"prefect.resource.role": "flow", "prefect.resource.name": ["pipeline", "verify"]}
        trigger = EventTrigger(
            expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
            match_related=flows,
            posture=Posture.Reactive,
            threshold=1,
        )
        action = CallWebhook(block_document_id=block, payload=PAYLOAD)
        Automation(name=NAME, trigger=trigger, actions=[action]).create()
    print(f"{NAME}: see {api.removesuffix('/api')}/v2/automations")


if __name__ == "__main__":
    main(sys.argv[1:])
