import { type FormEvent, type ReactNode, useId } from 'react';
import { Button, Problem } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Said } from '../../parts/text';
import { submitOnCommand } from '../../shell/keys';

interface InputProps {
  label: string;
  value: string;
  change: (value: string) => void;
  rows?: number;
  about?: string;
  choices?: string[];
  disabled?: boolean;
  /** The error of the field. */
  problem?: string;
}

/** One field of something that is kept. */
export function Input({ label, value, change, rows, about, choices, disabled, problem }: InputProps) {
  const id = useId();
  const common = {
    id,
    value,
    disabled,
    'aria-describedby': about || problem ? `${id}-about` : undefined,
    'aria-invalid': problem ? true : undefined,
    onChange: (event: { target: { value: string } }) => change(event.target.value),
  };
  return (
    <div className={`lab ${problem ? 'err' : ''}`}>
      <label htmlFor={id} className="name">
        {label}
      </label>
      {choices && (
        <select {...common} className="field">
          {choices.map((choice) => (
            <option key={choice} value={choice}>
              {choice || 'not set'}
            </option>
          ))}
        </select>
      )}
      {!choices && !!rows && (
        <textarea {...common} className="field" rows={rows} onKeyDown={submitOnCommand} />
      )}
      {!choices && !rows && <input {...common} className="field" />}
      {problem ? (
        <p id={`${id}-about`} className="errtext" role="alert">
          <Glyph state="bad" />
          <Said>{problem}</Said>
        </p>
      ) : (
        about && (
          <p id={`${id}-about`} className="hint">
            {about}
          </p>
        )
      )}
    </div>
  );
}

interface EditorProps {
  title: ReactNode;
  send: string;
  submit: () => void;
  pending: boolean;
  error: Error | null;
  remove?: () => void;
  close: () => void;
  children: ReactNode;
  /** Facts that cannot be edited. */
  facts?: ReactNode;
}

/** The panel beside a list, for viewing and editing one item. */
export function Editor(props: EditorProps) {
  const keep = (event: FormEvent) => {
    event.preventDefault();
    props.submit();
  };
  return (
    <form className="panel box editor" onSubmit={keep}>
      <header>
        <h2>{props.title}</h2>
        <span className="end">
          <Button small look="quiet" onClick={props.close}>
            Close
          </Button>
        </span>
      </header>
      {props.children}
      <Problem error={props.error} />
      <div className="submit">
        <Button type="submit" look="primary" disabled={props.pending}>
          {props.send}
        </Button>
        {props.remove && (
          <Button look="danger" onClick={props.remove} disabled={props.pending}>
            Delete
          </Button>
        )}
      </div>
      {props.facts}
    </form>
  );
}
