@engine @notifications
Feature: Hearing of changes

  Scenario: Skills
    Given a subscriber to "skills::on-change"
    When the skill "demo" is registered with "# One"
    Then it hears:
      """
      {"op": "register", "id": "demo"}
      """
    When the skill "demo" is registered with "# One"
    Then it hears:
      """
      {"op": "register", "id": "demo"}
      """
    When the skill "demo" is unregistered
    Then it hears:
      """
      {"op": "unregister", "id": "demo"}
      """

  Scenario: Removing what is not there is no change
    Given a subscriber to "skills::on-change"
    When the skill "missing" is unregistered
    And the skill "mark" is registered with "# Mark"
    Then it hears:
      """
      {"op": "register", "id": "mark"}
      """

  Scenario: Prompts
    Given a subscriber to "prompts::on-change"
    And the prompt "greet" rendered by "demo::greet"
    Then it hears:
      """
      {"op": "register", "name": "greet"}
      """
    When I call "prompts::unregister" with:
      """
      {"name": "greet"}
      """
    Then it hears:
      """
      {"op": "unregister", "name": "greet"}
      """

  Scenario: Direct writes to the state are changes too
    Given a subscriber to "skills::on-change"
    When I call "state::set" with:
      """
      {"scope": "skills", "key": "direct", "value": {"id": "direct", "skill": "# D"}}
      """
    Then it hears:
      """
      {"op": "register", "id": "direct"}
      """
    When I call "state::delete" with:
      """
      {"scope": "skills", "key": "direct"}
      """
    Then it hears:
      """
      {"op": "unregister", "id": "direct"}
      """

  Scenario: A subscriber that stops following is no longer notified
    Given a subscriber to "skills::on-change"
    When it stops following
    And the skill "demo" is registered with "# Demo"
    And another subscriber to "skills::on-change" joins
    And the skill "mark" is registered with "# Mark"
    Then the first one heard nothing

  Scenario: The state tells of its own changes
    Given a subscriber to "state" with:
      """
      {"scope": "notes"}
      """
    When I call "state::set" with:
      """
      {"scope": "notes", "key": "k", "value": 1}
      """
    Then it hears:
      """
      {"type": "state", "event_type": "state:created", "scope": "notes", "key": "k", "old_value": null, "new_value": 1}
      """
    When I call "state::set" with:
      """
      {"scope": "notes", "key": "k", "value": 2}
      """
    Then it hears:
      """
      {"type": "state", "event_type": "state:updated", "scope": "notes", "key": "k", "old_value": 1, "new_value": 2}
      """
    When I call "state::delete" with:
      """
      {"scope": "notes", "key": "k"}
      """
    Then it hears:
      """
      {"type": "state", "event_type": "state:deleted", "scope": "notes", "key": "k", "old_value": 2, "new_value": null}
      """
