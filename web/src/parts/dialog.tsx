import { type ReactNode, useEffect, useId, useRef } from 'react';

interface Props {
  title: string;
  close: () => void;
  children: ReactNode;
  className?: string;
}

/** A window over the page. The browser's own: it keeps the focus inside and needs no inline style. */
export function Dialog({ title, close, children, className = '' }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => element.current?.showModal(), []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Escape closes it, which onClose hears
    <dialog
      ref={element}
      className={`dialog ${className}`}
      aria-labelledby={id}
      onClose={close}
      onClick={(event) => event.target === element.current && close()}
    >
      <h2 id={id}>{title}</h2>
      {children}
    </dialog>
  );
}
