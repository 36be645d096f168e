import { useId } from 'react';
import { useTemplates } from '../../api/knowledge';
import { useAgents } from '../../api/queries';
import { Glyph } from '../../parts/glyph';
import { Said } from '../../parts/text';
import type { Field } from './schema';

interface Props {
  field: Field;
  typed: string;
  problem: string | undefined;
  change: (value: string) => void;
  directories: string[];
}

/** One field of a spec, with its option, what it means, and what is wrong with it. */
export function FormField(props: Props) {
  const { field, problem } = props;
  const id = useId();
  return (
    <div className={`lab ${problem ? 'err' : ''} ${['lines', 'pairs'].includes(field.input) ? 'whole' : ''}`}>
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
          field.about
        )}
      </p>
    </div>
  );
}

function Input({ field, typed, problem, change, directories, id }: Props & { id: string }) {
  const agents = useAgents().data ?? [];
  const templates = useTemplates().data ?? [];
  const common = {
    id,
    className: 'field',
    value: typed,
    'aria-describedby': `${id}-about`,
    'aria-invalid': problem ? true : undefined,
    onChange: (event: { target: { value: string } }) => change(event.target.value),
  };
  switch (field.input) {
    case 'long':
      return <textarea {...common} className="field prompt" placeholder="What is to be done?" />;
    case 'lines':
      return <textarea {...common} className="field mono" rows={2} placeholder="one in each line" />;
    case 'pairs':
      return (
        <textarea {...common} className="field mono" rows={2} placeholder="NAME=value, one in each line" />
      );
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
          <option value="">{field.otherwise ? `${field.otherwise} (default)` : 'not set'}</option>
          {field.choices.map((choice) => (
            <option key={choice}>{choice}</option>
          ))}
        </select>
      );
    case 'template':
      return (
        <select {...common}>
          <option value="">none</option>
          {templates.map((template) => (
            <option key={template.name}>{template.name}</option>
          ))}
        </select>
      );
    case 'agent':
      return (
        <select {...common}>
          <option value="">{agents.find((agent) => agent.default)?.name ?? 'configured'} (default)</option>
          {agents.map((agent) => (
            <option key={agent.name} value={agent.name} disabled={agent.problem !== null}>
              {agent.name}
              {!agent.installed ? ' (not installed)' : agent.problem ? ' (cannot be used)' : ''}
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
            placeholder={place ? (directories[0] ?? '/path/of/a/repository') : field.otherwise || 'not set'}
            list={place ? `${id}-places` : undefined}
          />
          {place && (
            <datalist id={`${id}-places`}>
              {directories.map((directory) => (
                <option key={directory}>{directory}</option>
              ))}
            </datalist>
          )}
        </>
      );
    }
  }
}
