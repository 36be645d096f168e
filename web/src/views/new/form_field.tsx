import { useId } from 'react';
import type { Agent } from '../../api/client';
import { useLists, useTemplates } from '../../api/knowledge';
import { counted } from '../../model/format';
import { Glyph } from '../../parts/glyph';
import { Said } from '../../parts/text';
import type { Field } from './schema';
import { choiceText } from './words';

interface Props {
  field: Field;
  typed: string;
  problem: string | undefined;
  change: (value: string) => void;
  known: Known;
}

/** The values to choose from. */
export interface Known {
  directories: string[];
  agents: Agent[];
  /** The agent that does it if none is chosen. */
  usual: string | undefined;
}

/** One field of a spec, with its option, what it means, and what is wrong with it. */
export function FormField(props: Props) {
  const { field, problem, known } = props;
  const id = useId();
  const lacksDefault = field.name === 'agent' && !known.usual;
  const about = lacksDefault
    ? 'The agent to use. No default is set: run kapelle init to set one.'
    : field.about;
  return (
    <div
      className={`lab ${problem ? 'err' : ''} ${['lines', 'pairs', 'servers', 'json'].includes(field.input) ? 'whole' : ''}`}
    >
      <label htmlFor={id} className={field.input === 'long' ? 'vh' : 'name'}>
        {field.label}
        {field.option && <span className="opt">{field.option}</span>}
      </label>
      <Input {...props} id={id} />
      <p id={`${id}-about`} className={problem ? 'errtext' : 'hint'}>
        {problem ? (
          <>
            <Glyph state="bad" />
            <Said>{problem}</Said>
          </>
        ) : (
          about
        )}
      </p>
    </div>
  );
}

function remarkOn(agent: Agent): string {
  if (!agent.installed) return ' (not installed)';
  return agent.problem ? ' (unusable)' : '';
}

function Input({ field, typed, problem, change, known, id }: Props & { id: string }) {
  const templates = useTemplates().data ?? [];
  const lists = useLists(field.input === 'list').data ?? [];
  const common = {
    id,
    className: 'field',
    value: typed,
    'aria-describedby': `${id}-about`,
    'aria-invalid': problem ? true : undefined,
    onChange: (event: { target: { value: string } }) => change(event.target.value),
  };
  const defaultAgent = known.usual ? `${known.usual} (default)` : 'choose an agent';
  switch (field.input) {
    case 'long':
      return (
        <textarea
          {...common}
          className="field prompt"
          placeholder={field.name === 'prompt' ? 'What should be done?' : 'What is the goal?'}
        />
      );
    case 'lines':
      return <textarea {...common} className="field mono" rows={field.option ? 2 : 4} />;
    case 'json':
      return <textarea {...common} className="field mono" rows={2} placeholder="{}" />;
    case 'servers':
      return (
        <textarea {...common} className="field mono" rows={2} placeholder="docs=npx docs-mcp, one per line" />
      );
    case 'pairs':
      return <textarea {...common} className="field mono" rows={2} placeholder="NAME=value, one per line" />;
    case 'truth':
      return (
        <select {...common}>
          <option value="">{field.otherwise === 'true' ? 'yes (default)' : 'no (default)'}</option>
          <option value={field.otherwise === 'true' ? 'false' : 'true'}>
            {field.otherwise === 'true' ? 'no' : 'yes'}
          </option>
        </select>
      );
    case 'choice':
      return (
        <select {...common}>
          <option value="">
            {field.otherwise
              ? `${choiceText(field.name, field.otherwise)} (default)`
              : field.empty || 'not set'}
          </option>
          {field.choices.map((choice) => (
            <option key={choice} value={choice}>
              {choiceText(field.name, choice)}
            </option>
          ))}
        </select>
      );
    case 'template':
      return (
        <select {...common}>
          <option value="">{field.empty}</option>
          {templates.map((template) => (
            <option key={template.name}>{template.name}</option>
          ))}
        </select>
      );
    case 'list':
      return (
        <select {...common}>
          <option value="">{lists.length > 0 ? field.empty : 'no saved lists'}</option>
          {lists.map(({ name, items }) => (
            <option key={name} value={name}>
              {name}, {counted(items.length, 'item')}
            </option>
          ))}
        </select>
      );
    case 'agent':
      return (
        <select {...common}>
          <option value="">
            {field.name === 'agent' ? defaultAgent : field.empty || 'the agent of the run'}
          </option>
          {known.agents.map((agent) => (
            <option key={agent.name} value={agent.name} disabled={agent.problem !== null}>
              {agent.name}
              {remarkOn(agent)}
            </option>
          ))}
        </select>
      );
    default: {
      const place = field.name === 'directory';
      return (
        <>
          <input
            {...common}
            className={`field ${place || field.name === 'eval' ? 'mono' : ''}`}
            inputMode={field.input === 'number' ? 'decimal' : undefined}
            placeholder={place ? '/path/of/a/repository' : field.otherwise || 'not set'}
            list={place ? `${id}-places` : undefined}
          />
          {place && (
            <datalist id={`${id}-places`}>
              {known.directories.map((directory) => (
                <option key={directory}>{directory}</option>
              ))}
            </datalist>
          )}
        </>
      );
    }
  }
}
