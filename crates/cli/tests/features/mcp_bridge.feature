@engine @mcp_bridge
Feature: What MCP clients see

  Scenario: A skill, a section and a slash-command
    Given the skill "demo" with "# Demo\n\nA demo worker. More: iii://fn/demo/guide\n"
    And the function "demo::guide" that answers:
      """
      {"content": "# Guide"}
      """
    And the function "demo::render" that answers with its arguments as text
    And the prompt "greet" rendered by "demo::render" that requires "name"
    When an MCP client asks "resources/read" with:
      """
      {"uri": "iii://demo"}
      """
    Then the result at "/contents/0/text" is "# Demo\n\nA demo worker. More: iii://fn/demo/guide\n"
    When an MCP client asks "resources/read" with:
      """
      {"uri": "skill://demo/SKILL.md"}
      """
    Then the result at "/contents/0/text" starts with "---\nname: demo\n"
    When an MCP client asks "resources/read" with:
      """
      {"uri": "iii://fn/demo/guide"}
      """
    Then the result at "/contents/0/text" is "# Guide"
    When an MCP client asks "prompts/get" with:
      """
      {"name": "greet", "arguments": {"name": "Ada"}}
      """
    Then the result at "/messages/0/content/text" is "name=Ada"
    And the result at "/messages/0/role" is "user"

  Scenario Outline: Arguments are held against what a prompt declares
    Given the function "demo::render" that answers with its arguments as text
    And the prompt "greet" rendered by "demo::render" that requires "name"
    When an MCP client asks "prompts/get" with:
      """
      {"name": "greet", "arguments": <arguments>}
      """
    Then it fails with "<words>"

    Examples:
      | arguments                       | words    |
      | {}                              | required |
      | {"name": "x", "other": "y"}     | other    |

  Scenario: Prompts are listed with their arguments
    Given the prompt "greet" rendered by "demo::render" that requires "name"
    When an MCP client asks "prompts/list" with:
      """
      {}
      """
    Then the result has the prompt "greet" with the required argument "name"

  Scenario: skill__fetch is there, other functions only if they are allowed
    Given the function "demo::allowed" that answers:
      """
      {"ok": true}
      """
    And the function "other::hidden" that answers:
      """
      1
      """
    Then eventually the MCP tools have "demo__allowed"
    And the MCP tools have "skill__fetch"
    And the MCP tools do not have "other__hidden"
    And the MCP tools do not have "skills__register"
    When an MCP client calls the tool "demo__allowed" with:
      """
      {}
      """
    Then the result at "/structuredContent/ok" is true
    When an MCP client calls the tool "other__hidden" with:
      """
      {}
      """
    Then it fails with "not found"

  Scenario Outline: T41: a function that no trusted skill links to is not content
    Given the function "other::hidden" that answers:
      """
      "secret"
      """
    When an MCP client asks "resources/read" with:
      """
      {"uri": "iii://fn/other/hidden"}
      """
    Then it fails with "not found"
    When an MCP client calls the tool "skill__fetch" with:
      """
      {"uri": "<uri>"}
      """
    Then the result at "/isError" is true

    Examples:
      | uri                            |
      | iii://fn/other/hidden          |
      | iii://fn/other%2Fhidden        |

  Scenario: The bus's own functions are out of reach
    When an MCP client asks "resources/read" with:
      """
      {"uri": "iii://fn/state/list"}
      """
    Then it fails with "internal namespace"
