@engine @prompts_register
Feature: Registering prompts

  Scenario: A prompt is registered, listed and removed
    When I call "prompts::register" with:
      """
      {"name": "greet", "description": "Greets.", "function_id": "demo::greet",
       "arguments": [{"name": "who", "description": "Whom", "required": true}, {"name": "how"}]}
      """
    Then it succeeds
    And the result at "/name" is "greet"
    And the result at "/registered_at" is a time
    When I call "prompts::list" with:
      """
      {}
      """
    Then the result at "/prompts/0/name" is "greet"
    And the result at "/prompts/0/arguments" is 2
    And the result at "/prompts/0/function_id" is "demo::greet"
    And the result at "/prompts/0/origin" is "state"
    When I call "prompts::mcp-list" with:
      """
      {}
      """
    Then the result is:
      """
      {"prompts": [{"name": "greet", "description": "Greets.", "arguments": [
        {"name": "who", "required": true, "description": "Whom"}, {"name": "how", "required": false}]}]}
      """
    When I call "prompts::unregister" with:
      """
      {"name": "greet"}
      """
    Then the result is:
      """
      {"name": "greet", "removed": true}
      """
    When I call "prompts::unregister" with:
      """
      {"name": "greet"}
      """
    Then the result at "/removed" is false

  Scenario Outline: What is refused
    When I call "prompts::register" with:
      """
      <payload>
      """
    Then it fails with "<words>"
    And nothing is registered

    Examples:
      | payload | words |
      | {"name": "", "description": "d", "function_id": "f"} | must be non-empty |
      | {"name": "A", "description": "d", "function_id": "f"} | lowercase |
      | {"name": "a::b", "description": "d", "function_id": "f"} | lowercase |
      | {"name": "a/b", "description": "d", "function_id": "f"} | lowercase |
      | {"name": "a b", "description": "d", "function_id": "f"} | lowercase |
      | {"name": "a", "description": " ", "function_id": "f"} | must be non-empty |
      | {"name": "a", "description": "d", "function_id": " "} | must be non-empty |
      | {"name": "a", "description": "d"} | function_id |
      | {"name": "a", "function_id": "f"} | description |
      | {"description": "d", "function_id": "f"} | name |
      | {"name": "a", "description": "d", "function_id": "f", "arguments": [{"name": " "}]} | must be non-empty |
      | {"name": "a", "description": "d", "function_id": "f", "arguments": [{"name": "x"}, {"name": "x"}]} | duplicate argument name |
      | {"name": "a", "description": "d", "function_id": "engine::x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "state::set"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "stream::x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "iii::x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "iii.x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "mcp::x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "a2a::x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "skills::list"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "prompts::list"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "skill::fetch"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "configuration::x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "worker::x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "compose::x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "sandbox::x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "directory::x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "shell::x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": "bridge.x"} | internal namespace |
      | {"name": "a", "description": "d", "function_id": " State::set"} | internal namespace |

  Scenario: A long name
    When I register a prompt with a name of 65 characters
    Then it fails with "too long"

  Scenario: The state holds what the seed says
    Given the prompt "greet" rendered by "demo::greet"
    When I call "state::get" with:
      """
      {"scope": "prompts", "key": "greet"}
      """
    Then the result at "/name" is "greet"
    And the result at "/function_id" is "demo::greet"
    And the result at "/arguments" is an array
    And the result at "/registered_at" is a time

  Scenario: Rows written behind the registry's back count at once
    When I call "state::set" with:
      """
      {"scope": "prompts", "key": "direct", "value": {"name": "direct", "description": "d", "arguments": [], "function_id": "demo::x"}}
      """
    Then "prompts::list" has the row "direct" of "prompts"
    When I call "state::delete" with:
      """
      {"scope": "prompts", "key": "direct"}
      """
    Then "prompts::list" has 0 rows of "prompts"
