import { ToggleGroup } from 'radix-ui';
import type { ComponentProps, CSSProperties, ReactNode } from 'react';
import type { ApiError } from '../api/client';
import { Glyph } from './glyph';
import { Said } from './text';

interface ButtonProps extends ComponentProps<'button'> {
  look?: 'primary' | 'quiet' | 'danger' | '';
  small?: boolean;
  hotkey?: string;
}

export function Button({ look = '', small, hotkey, children, className = '', ...rest }: ButtonProps) {
  return (
    <button type="button" className={`btn ${look} ${small ? 'sm' : ''} ${className}`} {...rest}>
      {children}
      {hotkey && <kbd>{hotkey}</kbd>}
    </button>
  );
}

interface Choice<T extends string> {
  value: T;
  label: ReactNode;
}

/** One of a few. */
export function Choices<T extends string>(props: {
  label: string;
  value: T;
  of: Choice<T>[];
  choose: (value: T) => void;
  className?: string;
}) {
  return (
    <ToggleGroup.Root
      type="single"
      className={`seg ${props.className ?? ''}`}
      aria-label={props.label}
      value={props.value}
      onValueChange={(value) => value && props.choose(value as T)}
    >
      {props.of.map(({ value, label }) => (
        <ToggleGroup.Item key={value} value={value}>
          {label}
        </ToggleGroup.Item>
      ))}
    </ToggleGroup.Root>
  );
}

export const share = (value: number): CSSProperties =>
  ({ '--v': Math.max(0, Math.min(1, value)) }) as CSSProperties;

/** Tells whether the used share of a limit deserves a warning. */
export const near = (part: number): boolean => part >= 0.8;

/** The used share of a limit. */
export function Meter({
  name,
  used,
  most,
  text,
}: {
  name: string;
  used: number;
  most: number;
  text: string;
}) {
  const part = most > 0 ? used / most : 0;
  return (
    <div className="meterrow">
      <span className="k">{name}</span>
      <div className={`bar ${near(part) ? 'near' : ''}`} style={share(part)} aria-hidden="true">
        <i />
      </div>
      <span>{text}</span>
    </div>
  );
}

/** An error of the daemon, beside the control that caused it. */
export function Problem({ error }: { error: ApiError | Error | null | undefined }) {
  if (!error) return null;
  const hint = 'hint' in error ? error.hint : null;
  return (
    <p className="errtext" role="alert">
      <Glyph state="bad" />
      <span>
        <Said>{error.message}</Said> {hint && <Said>{hint}</Said>}
      </span>
    </p>
  );
}

/** Lines in the shape of what will come. */
export function Loading({ lines = 4 }: { lines?: number }) {
  return (
    <div className="loading" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, line) => (
        <i key={line} />
      ))}
    </div>
  );
}

export const Empty = ({ title, children }: { title: string; children?: ReactNode }) => (
  <div className="panel empty">
    <h2>{title}</h2>
    {children}
  </div>
);
