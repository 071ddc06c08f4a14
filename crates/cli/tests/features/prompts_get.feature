@engine @prompts_get
Feature: Rendering prompts

  Scenario Outline: What a handler may answer
    Given the function "demo::render" that answers:
      """
      <answer>
      """
    And the prompt "p" rendered by "demo::render"
    When I call "prompts::mcp-get" with:
      """
      {"name": "p", "arguments": {}}
      """
    Then the result is:
      """
      <result>
      """

    Examples:
      | answer | result |
      | "Hi." | {"description": "About p.", "messages": [{"role": "user", "content": {"type": "text", "text": "Hi."}}]} |
      | {"content": "Hi."} | {"description": "About p.", "messages": [{"role": "user", "content": {"type": "text", "text": "Hi."}}]} |
      | {"messages": [{"role": "assistant", "content": {"type": "text", "text": "A"}}, {"role": "user", "content": {"type": "text", "text": "B"}}]} | {"description": "About p.", "messages": [{"role": "assistant", "content": {"type": "text", "text": "A"}}, {"role": "user", "content": {"type": "text", "text": "B"}}]} |

  Scenario Outline: What a handler may not answer
    Given the function "demo::render" that answers:
      """
      <answer>
      """
    And the prompt "p" rendered by "demo::render"
    When I call "prompts::mcp-get" with:
      """
      {"name": "p"}
      """
    Then it fails with "unsupported shape"

    Examples:
      | answer           |
      | 5                |
      | null             |
      | ["a"]            |
      | {"text": "a"}    |
      | {"content": 5}   |
      | {"messages": "a"} |

  Scenario: A handler gets the arguments, and nothing that is not one
    Given the function "demo::render" that answers with its arguments as text
    And the prompt "p" rendered by "demo::render"
    When I call "prompts::mcp-get" with:
      """
      {"name": "p", "arguments": {"to": "Ada", "subject": "Hello"}}
      """
    Then the result at "/messages/0/content/text" is "subject=Hello to=Ada"

  Scenario: Arguments are the handler's business
    Given the function "demo::render" that answers with its arguments as text
    And the prompt "p" rendered by "demo::render" that requires "to"
    When I call "prompts::mcp-get" with:
      """
      {"name": "p", "arguments": null}
      """
    Then it succeeds

  Scenario Outline: What cannot be rendered
    When I call "prompts::mcp-get" with:
      """
      <payload>
      """
    Then it fails with "<words>"

    Examples:
      | payload             | words     |
      | {"name": "missing"} | not found |
      | {"name": "Bad"}     | lowercase |
      | {}                  | name      |

  Scenario: A handler that is not there
    Given the prompt "p" rendered by "demo::gone"
    When I call "prompts::mcp-get" with:
      """
      {"name": "p"}
      """
    Then it fails with "not found"

  Scenario: The guard is asked again when a prompt is rendered
    When I call "state::set" with:
      """
      {"scope": "prompts", "key": "sneaky", "value": {"name": "sneaky", "description": "d", "arguments": [], "function_id": "state::list"}}
      """
    And I call "prompts::mcp-get" with:
      """
      {"name": "sneaky", "arguments": {"scope": "skills"}}
      """
    Then it fails with "internal namespace"

  Scenario: A handler that fails says why
    Given the function "demo::render" that fails with "out of ideas"
    And the prompt "p" rendered by "demo::render"
    When I call "prompts::mcp-get" with:
      """
      {"name": "p"}
      """
    Then it fails with "out of ideas"
